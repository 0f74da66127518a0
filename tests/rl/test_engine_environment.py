"""What vLLM's process is told: nothing that would make it one of the learners."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from windtunnel.rl.vllm_engine import VLLMSettings, engine_environment

GROUP = """
import sys, datetime, torch.distributed as dist
dist.init_process_group("gloo", init_method=sys.argv[1], world_size=1, rank=0, timeout=datetime.timedelta(seconds=20))
print(dist.get_world_size())
"""


def test_an_engine_started_by_a_rank_makes_a_process_group_of_its_own(tmp_path: Path) -> None:
    rank = {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1", "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "none",
    }  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = VLLMSettings(tensor=1, memory=0.3, devices=None, log=tmp_path / "log")
    environment = engine_environment(dict(os.environ) | rank, settings)
    assert not rank.keys() & environment.keys()
    command = [sys.executable, "-c", GROUP, f"tcp://127.0.0.1:{port}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.strip() == "1", done.stderr


def test_gpus_are_named_within_those_that_may_be_seen(tmp_path: Path) -> None:
    settings = VLLMSettings(tensor=2, memory=0.3, devices="1,2", log=tmp_path / "log")
    assert engine_environment({"CUDA_VISIBLE_DEVICES": "4,5,GPU-7"}, settings)["CUDA_VISIBLE_DEVICES"] == "5,GPU-7"
    assert engine_environment({}, settings)["CUDA_VISIBLE_DEVICES"] == "1,2"
