"""`serve` as a process: a run folder in, a clean end on SIGTERM, refusals that name what would work."""

import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "generate"))
from tiny import TOKENIZER
from waiting import HANG

from windtunnel.checkpoint import CheckpointStore, Facts, export_run, save_now
from windtunnel.generate import Source, export_model, load_source
from windtunnel.model import build_model, gpt_shape
from windtunnel.recipe import Recipe, UserError
from windtunnel.run import RunFolder
from windtunnel.serve import serve

pytestmark = pytest.mark.end_to_end

SCRIPT = """
import sys
from pathlib import Path
from windtunnel.serve import serve
serve(Path(sys.argv[1]), port=int(sys.argv[2]))
print("ended cleanly", flush=True)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of steps 5 (the best) and 9."""
    recipe = Recipe.model_validate(
        {
            "name": "tiny",
            "model": {"depth": 2, "aspect": 16, "head_dim": 16, "sequence": 256},
            "data": {"corpus": {"kind": "arithmetic"}},
            "serve": {"slots": 2, "queue": 1, "max_tokens": 250},
        }
    )
    with RunFolder.create(tmp_path_factory.mktemp("serve"), recipe, rig={}) as folder:
        TOKENIZER.save(folder.tokenizer_path)
        store = CheckpointStore(folder.checkpoints_dir)
        for step, loss in ((5, 1.5), (9, 2.5)):
            model = build_model(gpt_shape(recipe.model, TOKENIZER.vocab), seed=step)
            config = {"shape.json": dataclasses.asdict(model.shape)}
            parts = {"model": dict(model.named_parameters())}
            save_now(store, parts, Facts(step, {}, loss), config=config, beside=[folder.tokenizer_path])
        return folder.path


@pytest.fixture
def process(run: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process and its URL."""
    environment = {k: v for k, v in os.environ.items() if k != "WINDTUNNEL_TOKEN"}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(run), "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    ) as started:
        assert started.stdout
        line = started.stdout.readline()
        found = re.search(r"serving (\S+) \(step 5, validation loss 1.5000\) on (http://127\.0\.0\.1:\d+)", line)
        assert found, line + started.stdout.read()
        assert found[1] == run.name
        yield started, found[2]
        if started.poll() is None:
            started.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_the_requests_under_way(
    process: tuple[subprocess.Popen[str], str], run: Path, number: int
) -> None:
    started, url = process
    assert httpx.get(f"{url}/health").status_code == 200
    results: list[httpx.Response] = []
    body = {"model": run.name, "prompt": "H1+", "max_tokens": 200, "temperature": 1}
    thread = threading.Thread(target=lambda: results.append(httpx.post(f"{url}/v1/completions", json=body, timeout=HANG)))
    thread.start()
    deadline = time.monotonic() + HANG
    while (
        "windtunnel_slots_used 1.0" not in httpx.get(f"{url}/metrics").text and thread.is_alive() and time.monotonic() < deadline
    ):
        time.sleep(0.005)
    started.send_signal(number)
    thread.join(HANG)
    assert started.wait(HANG) == 0
    assert started.stdout
    assert started.stdout.read() == "ended cleanly\n"
    assert results[0].status_code == 200


def test_a_port_in_use_is_named_with_a_free_one(run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} on 127.0.0.1 is in use") as refused:
            serve(run, port=port)
    free = re.fullmatch(r"try --port (\d+)", refused.value.fix or "")
    assert free
    assert int(free[1]) != port
    socket.create_server(("127.0.0.1", int(free[1]))).close()


def test_open_to_others_only_with_a_token(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WINDTUNNEL_TOKEN", raising=False)
    with pytest.raises(UserError, match="no token") as refused:
        serve(run, host="0.0.0.0", port=0)
    assert "WINDTUNNEL_TOKEN" in (refused.value.fix or "")
    with pytest.raises(UserError, match="printable"):
        serve(run, port=0, token="a b\n")
    with pytest.raises(UserError, match=r"cannot listen|--host"):
        serve(run, host="203.0.113.7", port=0, token="x")


def test_sources(run: Path, tmp_path: Path) -> None:
    def loaded(path: Path, **options: object) -> Source:
        source = load_source(path, **options)  # type: ignore[arg-type]
        source.generator.close()
        return source

    best = loaded(run)
    assert (best.what, best.limits.slots, best.generator.context) == ("step 5, validation loss 1.5000", 2, 256)
    assert loaded(run, step=9).what.startswith("step 9")
    with pytest.raises(UserError, match="no good checkpoint of step 6"):
        loaded(run, step=6)
    with pytest.raises(UserError, match="--device"):
        loaded(run, device="tpu9")
    exported = export_run(run, tmp_path / "exported").folder
    assert loaded(exported).name == "exported"
    with pytest.raises(UserError, match="no steps"):
        loaded(exported, step=5)
    for name in ("tokenizer.json", "model.safetensors"):
        data = bytearray((exported / name).read_bytes())
        data[len(data) // 2] ^= 1
        (exported / name).write_bytes(data)
        with pytest.raises(UserError, match=f"damaged model: exported/{name}: checksum differs"):
            loaded(exported)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError):
        loaded(tmp_path / "empty")


def test_a_run_without_a_good_checkpoint(tmp_path: Path, run: Path) -> None:
    recipe = RunFolder.open(run).recipe
    with RunFolder.create(tmp_path, recipe, rig={}) as folder:
        TOKENIZER.save(folder.tokenizer_path)
    with pytest.raises(UserError, match="no good checkpoint to serve: it has saved none"):
        load_source(folder.path)


def test_a_fine_tuned_run_behind_openais_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter's run, served by the command itself: what its merged export says in transformers' own hands."""
    import openai
    from hf_runs import base_of, trained
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))
    run = trained(tmp_path, base_of(tmp_path / "base", "llama"), "model.adapter={rank: 4}", "model.sequence=64")
    folder = export_model(run, tmp_path / "export", dtype="fp32").folder
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    talk = [{"role": "user", "content": "one 2 and 3"}]
    asked = tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    made = model.generate(**asked, max_new_tokens=20, do_sample=False, pad_token_id=0)[0, asked["input_ids"].size(1) :]
    wanted = tokenizer.decode(made, skip_special_tokens=True)
    command = [sys.executable, "-m", "windtunnel", "serve", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as started:
        assert started.stdout
        line = started.stdout.readline()
        url = line.rpartition(" on ")[2].strip()
        assert "step 3" in line
        try:
            with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=HANG) as client:
                chat = client.chat.completions.create
                greedy = {"model": run.name, "messages": talk, "max_tokens": 20, "temperature": 0}
                answer = chat(**greedy)
                assert answer.choices[0].message.content == wanted
                assert answer.choices[0].finish_reason == ("stop" if set(made.tolist()) & {0, 2} else "length")
                assert answer.usage.prompt_tokens == asked["input_ids"].size(1)
                chunks = list(chat(**greedy, stream=True, stream_options={"include_usage": True}))
                assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == wanted
                assert chunks[-1].usage == answer.usage
                sampled = {**greedy, "temperature": 0.9, "top_p": 0.8, "seed": 5, "n": 3, "logprobs": True, "top_logprobs": 2}
                one, two = chat(**sampled), chat(**sampled)
                assert [c.message.content for c in one.choices] == [c.message.content for c in two.choices]
                assert one.choices[0].logprobs.content[0].top_logprobs[1].logprob < 0
                stop = wanted[3:5]
                assert chat(**greedy, stop=[stop]).choices[0].message.content == wanted[: wanted.index(stop)]
                text = tokenizer.decode(asked["input_ids"][0])
                whole = client.completions.create(model=run.name, prompt=text, max_tokens=20, temperature=0, logprobs=0)
                assert whole.choices[0].text == wanted
                assert all(len(top) == 1 for top in whole.choices[0].logprobs.top_logprobs)
                with pytest.raises(openai.BadRequestError, match="context is 64") as refused:
                    chat(**{**greedy, "messages": [{"role": "user", "content": "one " * 200}]})
                assert refused.value.code == "context_length_exceeded"
        finally:
            started.terminate()
            assert started.wait(HANG) == 0
