"""An environment and a checkout under /tmp: verifiers work from there, and candidates see no more of /tmp than these."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

import windtunnel
from windtunnel.recipe import UserError
from windtunnel.verify.sandbox import Sandbox

# Run by the environment's own Python. Each attempt is a function that the candidate calls: what it returns tells how far it got.
JUDGE = """
import json, sys
from pathlib import Path
import windtunnel
from windtunnel.verify.code import Call, CodeTask, CodeVerifier
from windtunnel.verify.sandbox import SandboxJob, Limits, Sandbox

attempts = json.loads(sys.argv[1])
with Sandbox(preload=("windtunnel.verify.code.child",), namespaces=sys.argv[2] == "True") as sandbox:
    layers = sandbox.start()
    verdict = CodeVerifier(CodeTask((Call("f", [3], 9),)), sandbox).verify("def f(x): return x * x")
    worked = {}
    for attempt in attempts:
        body = f"import os\\ndef f():\\n try: return [True, repr({attempt})]\\n except OSError as e: return [False, repr(e)]"
        message = {"source": body, "function": "f", "args": [], "kwargs": {"dict": []}}
        outcome = sandbox.run(SandboxJob("windtunnel.verify.code.child:call", message, (), Limits()))
        worked[attempt] = outcome.message.get("value", str(outcome))
print(json.dumps({
    "prefix": sys.prefix, "package": windtunnel.__file__, "hardened": layers.hardened, "breaches": layers.breaches,
    "accepted": verdict.accepted, "reason": str(verdict), "worked": worked,
}))
"""


@pytest.fixture(scope="module")
def checkout() -> Iterator[Path]:
    """A checkout under /tmp with its environment, a file of tests beside the package, and somebody else's file beside it all."""
    folder = Path(tempfile.mkdtemp(prefix="windtunnel-checkout-", dir="/tmp"))
    folder.chmod(0o755)
    here = folder / "checkout"
    venv.create(here / ".venv", symlinks=True)
    shutil.copytree(Path(windtunnel.__file__).parent, here / "src" / "windtunnel", ignore=shutil.ignore_patterns("__pycache__"))
    packages = next((here / ".venv" / "lib").glob("python*/site-packages"))
    others = [path for path in sys.path if path.rstrip("/").endswith(("site-packages", "dist-packages"))]
    (packages / "checkout.pth").write_text("\n".join([str(here / "src"), *others]))
    (here / "answers.json").write_text("42")
    (folder / "secret").write_text("42")
    yield here
    shutil.rmtree(folder)


@pytest.mark.parametrize("namespaces", [True, False])
def test_a_verifier_runs_from_an_environment_under_tmp_and_locks_candidates_in(checkout: Path, namespaces: bool) -> None:
    package = checkout / "src" / "windtunnel" / "__init__.py"
    harmless = [f"open({str(package)!r}).read(1)", "open('own', 'w').write('x')"]
    harmful = [
        f"open({str(checkout / 'answers.json')!r}).read()",
        f"open({str(checkout.parent / 'secret')!r}).read()",
        f"open({str(package)!r}, 'a')",
        f"open({str(package.parent / 'new.py')!r}, 'w')",
        f"open({str(checkout / '.venv' / 'new.py')!r}, 'w')",
        f"open({str(checkout / 'new')!r}, 'w')",
        f"os.rename({str(checkout)!r}, {str(checkout) + '-moved'!r})",
        f"os.rename({str(checkout.parent)!r}, '/tmp/moved')",
        f"os.chmod({str(package)!r}, 0o666)",
        f"os.unlink({str(package)!r})",
    ]
    if namespaces:
        folders = [str(folder) for folder in (checkout.parent, checkout, checkout / "src")]
        harmless.append(f"[sorted(os.listdir(folder)) for folder in {folders}]")
    else:
        harmful.append(f"os.listdir({str(checkout.parent)!r})")
    command = [str(checkout / ".venv" / "bin" / "python"), "-c", JUDGE, json.dumps(harmless + harmful), str(namespaces)]
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd="/", env=bare, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["prefix"], told["package"]) == (str(checkout / ".venv"), str(package))
    assert told["accepted"], told["reason"]
    assert told["breaches"] == []
    assert told["hardened"]
    assert {attempt: came for attempt, came in told["worked"].items() if attempt in harmless and not came[0]} == {}
    assert {attempt: came for attempt, came in told["worked"].items() if attempt in harmful and came[0] is not False} == {}
    if namespaces:  # of the checkout's own folder there is nothing but what it imports
        assert told["worked"][harmless[-1]][1] == repr([["checkout"], [".venv", "src"], ["windtunnel"]])
    assert package.stat().st_size == Path(windtunnel.__file__).stat().st_size
    assert {path.name for path in checkout.iterdir()} == {".venv", "src", "answers.json"}


def test_an_environment_that_is_tmp_itself_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", "/tmp")
    with Sandbox() as box, pytest.raises(UserError, match="temporary files") as caught:
        box.start()
    assert "/tmp/environment" in (caught.value.fix or "")
