"""Whether a plan may compute in floats of fewer than 32 bits. Imports no torch."""

from __future__ import annotations

import re

from windtunnel.verify.kernel.plan.schema import Plan

# As dtypes of buffers, in casts, constants and texts for the compiler; and what makes a dtype of any text, or floats of integers.
NARROW = re.compile(r"float16|float8|fp16|bf16|fp8|fp4|half|e\dm\d|int16|int8|\bdtype\(|language\.dtype\b", re.IGNORECASE)


def may_narrow(plan: Plan) -> bool:
    """Return whether anything in a plan names such a float: one that does not cannot overflow where float32 does not.

    A name too many, in a comment, does no harm.
    """
    return NARROW.search(plan.model_dump_json(exclude={"order"})) is not None
