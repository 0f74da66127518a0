"""The stack of a rank says where it was, whichever of its threads answered."""

import pytest

from windtunnel.launch.stacks import Stack

OTHER = 'Thread 0x01 (most recent call first):\n  File "/x/threading.py", line 9 in run\n'
CODE = (
    '(most recent call first):\n  File "/x/torch/nn.py", line 5 in linear\n  File "/x/windtunnel/train/loop.py", line 7 in step\n'
)


@pytest.mark.parametrize(
    "text",
    [
        f"{OTHER}\nCurrent thread 0x02 {CODE}",
        f"Current thread 0x03 (most recent call first):\n  <no Python frame>\n\n{OTHER}\nThread 0x02 {CODE}",
    ],
    ids=["the one that trains", "one without Python"],
)
def test_a_stack_is_that_of_the_thread_that_trains(text: str) -> None:
    found = Stack(text)
    assert found.frames == [("/x/torch/nn.py", 5, "linear"), ("/x/windtunnel/train/loop.py", 7, "step")]
    assert found.where == "/x/torch/nn.py:5 (linear), called from /x/windtunnel/train/loop.py:7 (step)"
