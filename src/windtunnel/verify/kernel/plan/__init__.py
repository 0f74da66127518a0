"""Launch plans: what a candidate's host code launches and allocates, as plain data, and the rules that such data must keep.

Nothing here imports torch or triton.
"""

from windtunnel.verify.kernel.plan.schema import Choice, Form, Kernel, Launch, Operation, Plan, Recorded, Recording, Tensor

__all__ = ["Choice", "Form", "Kernel", "Launch", "Operation", "Plan", "Recorded", "Recording", "Tensor"]
