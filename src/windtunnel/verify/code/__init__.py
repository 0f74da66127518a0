"""Code against hidden tests: each test runs in a fresh child, which sees one input and never an answer."""

from .asserts import cases_of_asserts
from .cases import Call, Program
from .task import CodeTask
from .verifier import CodeVerifier

__all__ = ["Call", "CodeTask", "CodeVerifier", "Program", "cases_of_asserts"]
