"""Machines rented from a cloud: the task file that SkyPilot starts, with the rig that the plan priced. No cloud is ours to drive.

SkyPilot rents, brings files, runs and ends machines on all of these providers behind one file and one command, and looks for
another region or provider where one has none left. What is written here is checked against its own schema by its own command.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from windtunnel.recipe import Recipe, UserError, dump_recipe
from windtunnel.rig import PROVIDER, Rig, instance_names
from windtunnel.run import NOTICE_SECONDS, NOTICE_VARIABLE

from .bring import EXTRAS, build_wheel, install_script, moved, named_files
from .host import HOME
from .probes import find_python, require_gpus

# Whose schema this writes for; the one that is installed has the last word (`compare_with_schema`).
VERSION = "0.14.1"
TASK = "task.yaml"
JOB = "~/windtunnel"
"""On the machine: the package, the recipe and the files that it names."""
_RUNS, _ENVIRONMENT, _CURRENT = (f'"$HOME/{HOME}/{name}"' for name in ("runs", "installed/task", "current"))
"""Where ssh finds them too: what is launched there is looked at and stopped in the same way."""
# Long enough to fetch the end of a run, short enough to cost cents.
IDLE_MINUTES = 10
"""The machine is ended when nothing has run for so long, whatever became of the job."""
# The image with its drivers and torch alone takes a good part of the least.
DISK_MARGIN, LEAST_DISK = 1.3, 100
TAKEN = 100
"""What a task ends with whose machine is about to be taken away: SkyPilot then rents another one and starts it again."""
RECOVERY = {"strategy": "EAGER_NEXT_REGION", "max_restarts_on_errors": 0, "recover_on_exit_codes": [TAKEN]}
"""Of a managed job: another region first, where there are rather machines left; an error of the training is not tried again."""
COMPARE_SECONDS = 120.0
_REFUSED = 7
_KEPT = 20_000
_COMPARE = f"""
import sys, jsonschema, sky, yaml
from sky.utils import schemas
task = yaml.safe_load(open(sys.argv[1]))
try:
    jsonschema.validate(task, schemas.get_task_schema())
    jsonschema.validate(task['resources'], schemas.get_resources_schema())
except jsonschema.ValidationError as error:
    print('.'.join(map(str, error.path)), error.message)
    sys.exit({_REFUSED})
print('valid by the schema of SkyPilot', sky.__version__)
"""
PRICE_MARGIN = 1.25
"""Over the planned price a machine is not taken: a dearer region would break the budget."""
# SkyPilot's names of GPUs, by ours (rig/catalog.yaml). RTX cards are written with a hyphen there.
_GPUS = {
    "A10G": "A10G", "A100-40": "A100", "A100-80": "A100-80GB", "L40S": "L40S", "RTX3090": "RTX3090", "RTX4090": "RTX4090",
    "H100-PCIe": "H100", "H100-NVL": "H100-NVL", "H100": "H100", "H200": "H200", "GH200": "GH200", "B200": "B200",
}  # fmt: skip


# Of SkyPilot's own errors, and of what clouds answer: words that say that machines are out.
_NO_ROOM = (
    "resources unavailable", "resourcesunavailable", "failed to acquire resources", "failed to provision",
    "insufficientinstancecapacity", "insufficient capacity", "insufficient-capacity", "resource_pool_exhausted",
    "no instances currently available", "out of capacity",
)  # fmt: skip


@dataclass(frozen=True)
class Provider:
    """A provider that SkyPilot rents from.

    Attributes:
        infra: its name there.
        variables, files: where credentials are looked for, in the environment and below the home folder; one is enough.
        login: how to get them.
    """

    infra: str
    variables: tuple[str, ...]
    files: tuple[str, ...]
    login: str


PROVIDERS = {
    "aws": Provider("aws", ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"), (".aws/credentials", ".aws/config"), "aws configure"),
    "gcp": Provider(
        "gcp", ("GOOGLE_APPLICATION_CREDENTIALS",), (".config/gcloud/application_default_credentials.json",),
        "gcloud auth application-default login",
    ),
    "runpod": Provider("runpod", ("RUNPOD_AI_API_KEY", "RUNPOD_API_KEY"), (".runpod/config.toml",), "runpod config"),
    "lambda": Provider("lambda", (), (".lambda_cloud/lambda_keys",), "write api_key = ... to ~/.lambda_cloud/lambda_keys"),
    "kubernetes": Provider("kubernetes", ("KUBECONFIG",), (".kube/config",), "put the cluster's file at ~/.kube/config"),
}  # fmt: skip


@dataclass(frozen=True)
class Rented:
    """What the task needs of the plan. Attributes: rig: that it priced. hours: of the plan. disk_gib: that the run takes."""

    rig: Rig
    hours: float
    disk_gib: float


def provider_of(name: str) -> Provider:
    """Return a provider by its name. Raises UserError."""
    if name not in PROVIDERS:
        raise UserError(f"--to {name}: unknown provider", f"expected {', '.join(PROVIDERS)}, ssh:HOST or a folder")
    return PROVIDERS[name]


def require_spot(name: str) -> str:
    """Return what to know about a provider's machines that may be taken away; '' where there is nothing.

    Raises:
        UserError: SkyPilot rents none there (sky/clouds/lambda_cloud.py: spot is among what is not supported).
    """
    if name == "lambda":
        raise UserError(
            "--to lambda --spot: SkyPilot rents no spot machines from Lambda", "without --spot; or --to runpod --spot"
        )
    if name == "kubernetes":
        return "a cluster has spot machines only where its nodes are labelled so; SkyPilot refuses the task elsewhere: no --spot"
    return ""


def refused_by_cloud(said: str) -> tuple[str, str] | None:
    """Return (what a cloud refused, the fix) of what SkyPilot printed; None where it speaks of neither quota nor room."""
    text = said.lower()
    # Quota first: such a message may speak of capacity too, and waiting does not raise a quota.
    if "quota" in text or "limitexceeded" in text.replace(" ", "") or "vcpulimit" in text:
        fix = "ask the provider for a higher quota of this GPU, which takes hours to days; or --to runpod, or fewer GPUs: --on"
        return "the account's quota of this machine is exceeded", fix
    if any(word in text for word in _NO_ROOM):
        return "no machine of this kind is free there now", "another --to, another GPU: --on, or the same later"
    return None


def require_credentials(name: str, *, home: Path | None = None) -> None:
    """Refuse a provider for which nothing is set up here, before anything is rented. Raises UserError."""
    provider, place = provider_of(name), home or Path.home()
    if any(os.environ.get(variable) for variable in provider.variables) or any(
        (place / file).is_file() for file in provider.files
    ):
        return
    looked = [*(f"${variable}" for variable in provider.variables), *(f"~/{file}" for file in provider.files)]
    raise UserError(f"no credentials for {name} here: looked at {', '.join(looked)}", provider.login)


def task(
    recipe: Recipe, rented: Rented, name: str, files: Mapping[str, str], *, wheel: str, spot: bool = False
) -> dict[str, Any]:
    """Return the task as SkyPilot's file has it.

    Args:
        recipe: as it is on the machine.
        rented: the rig, and what the run takes.
        name: of the provider.
        files: place on the machine -> file or folder here.
        wheel: the package's file name.
        spot: a machine that may be taken away, for less.

    Raises:
        UserError: an unknown provider; the rig is none that can be rented.
    """
    rig = rented.rig
    if rig.gpu is None or rig.name == "here":
        raise UserError(f"--on {rig.name}: this is no rig to be rented", "name one: --on 8xH100, or --on g5.xlarge")
    extra = EXTRAS.get((recipe.checkpoints.mirror or "").partition("://")[0], "")
    package = f"{wheel}[{extra}]" if extra else wheel
    price = "" if rig.dollars_per_hour is None else f" --price {rig.dollars_per_hour:g}"
    resources: dict[str, Any] = {
        "infra": provider_of(name).infra,
        **_machine(rig, name),
        "use_spot": spot,
        **({"job_recovery": RECOVERY} if spot else {}),
        # Checkpoints are written beside the old ones before those are removed.
        "disk_size": max(LEAST_DISK, round(DISK_MARGIN * rented.disk_gib)),
        # Jobs alone keep it up: a forgotten shell does not.
        "autostop": {"idle_minutes": IDLE_MINUTES, "down": True, "wait_for": "jobs"},
    }
    if rig.dollars_per_hour is not None:
        # Of one node: SkyPilot compares it with a machine's price.
        resources["max_hourly_cost"] = round(PRICE_MARGIN * rig.dollars_per_hour / rig.nodes, 2)
    priced = "" if rig.dollars_per_hour is None else f"WINDTUNNEL_PRICE={rig.dollars_per_hour:g} "
    train = f"windtunnel train recipe.yaml --restartable --gpus {rig.gpus_per_node} --root {_RUNS} --yes{price}"
    install = install_script('"$python"', _ENVIRONMENT, shlex.quote(f"./{package}"), _CURRENT)
    return {
        # SkyPilot's names are those of clouds, which take no underscore.
        "name": recipe.name.replace("_", "-"),
        "resources": resources,
        "num_nodes": rig.nodes,
        "envs": {PROVIDER: name} | ({NOTICE_VARIABLE: name} if spot and name in NOTICE_SECONDS else {}),
        "file_mounts": dict(files),
        "setup": f"{require_gpus(rig.gpus_per_node).lstrip()}set -e\ncd {JOB}\npython=$({find_python()})\n"
                 f"{install}{priced}{_CURRENT}/bin/windtunnel check recipe.yaml --on here\n",
        "run": f"cd {JOB}\nexport PATH={_CURRENT}/bin:$PATH\ncode=0\n{train} || code=$?\n"
               # Code 3 is also a budget that is used up, after which no other machine must be rented.
               f"if [ $code = 3 ] && python -m windtunnel.remote.taken {_RUNS}; then exit {TAKEN}; fi\nexit $code\n",
    }  # fmt: skip


def write_job(recipe: Recipe, rented: Rented, name: str, folder: Path, *, spot: bool = False) -> Path:
    """Write a job's folder: task file, package and recipe; returns the task file.

    Raises:
        UserError: as `task`; several nodes; the folder is there already or cannot be written.
    """
    if rented.rig.nodes > 1:
        raise UserError(
            f"--on {rented.rig.name}: this trains on one machine", "several nodes: windtunnel launch RECIPE --on RIG --to FOLDER"
        )
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be made: {error.strerror or error}", "name another one: --job FOLDER") from None
    wheel = build_wheel(folder)
    shutil.rmtree(folder / "source", ignore_errors=True)
    shutil.rmtree(folder / "build", ignore_errors=True)
    named = sorted(set(named_files(recipe)))
    places = {path: f"files/{number}/{path.name}" for number, path in enumerate(named)}
    there = own_mirror(moved(recipe, places), folder.name)
    (folder / "recipe.yaml").write_text(dump_recipe(there), encoding="utf-8")
    files = {f"{JOB}/{wheel.name}": wheel, f"{JOB}/recipe.yaml": folder / "recipe.yaml"}
    files |= {f"{JOB}/{place}": path for path, place in places.items()}
    made = task(
        there, rented, name, {place: str(path.absolute()) for place, path in files.items()}, wheel=wheel.name, spot=spot
    )  # fmt: skip
    (folder / TASK).write_text(dump_task(made), encoding="utf-8")
    return folder / TASK


def own_mirror(recipe: Recipe, job: str) -> Recipe:
    """Return the recipe with a mirror that is a job's alone: what is found there is this job's, on whatever machine it starts.

    Args:
        recipe: with a mirror.
        job: its name, of the recipe, the place and the time.
    """
    checkpoints = recipe.checkpoints
    return recipe.model_copy(
        update={"checkpoints": checkpoints.model_copy(update={"mirror": f"{(checkpoints.mirror or '').rstrip('/')}/{job}"})}
    )


def dump_task(made: Mapping[str, Any]) -> str:
    """Return a task as YAML, with its scripts as blocks."""

    class Dumper(yaml.SafeDumper):
        """Writes texts of several lines as they are."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return yaml.dump(dict(made), Dumper=Dumper, sort_keys=False, width=120)


def compare_with_schema(file: Path) -> str:
    """Return what SkyPilot's own schema says of a task file; it asks no cloud.

    Raises:
        UserError: it does not take the file.
    """
    program = shutil.which("sky")
    if program is None:
        return f"not compared with SkyPilot's schema, which is not installed here: pip install skypilot=={VERSION}"
    # SkyPilot usually has an environment of its own; the interpreter beside its command is the one that can import it.
    interpreter = Path(program).parent / "python"
    try:
        done = subprocess.run(
            [interpreter, "-c", _COMPARE, file], capture_output=True, text=True, timeout=COMPARE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"not compared with SkyPilot's schema: {type(error).__name__}"
    if done.returncode == _REFUSED:
        raise UserError(
            f"{file.name}: SkyPilot's schema refuses it: {done.stdout.strip()}", f"this writes for skypilot=={VERSION}"
        )
    return done.stdout.strip() if done.returncode == 0 else f"not compared with SkyPilot's schema: {_last(done.stderr)}"


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no answer"])[-1]


def start_command(file: Path, name: str, *, spot: bool = False) -> Sequence[str]:
    """Return the command that rents the machine and starts the task; a machine that may be taken away as a managed job.

    Raises:
        UserError: SkyPilot is not installed.
    """
    if shutil.which("sky") is None:
        raise UserError("SkyPilot is not installed here", f"pip install 'skypilot[{name}]=={VERSION}'")
    if spot:
        return ["sky", "jobs", "launch", "--name", f"wt-{file.parent.name}"[:40], "--detach-run", str(file)]
    return ["sky", "launch", "--cluster", f"wt-{file.parent.name}"[:40], "--detach-run", str(file)]


def run_and_keep(command: Sequence[str]) -> tuple[int, str]:
    """Run a command in this terminal; returns its exit code and the end of what it wrote to standard error, shown as it comes.

    Standard output and input stay the terminal's: SkyPilot asks there. Its errors end on the other one.
    """
    import codecs

    kept, decoder = "", codecs.getincrementaldecoder("utf-8")("replace")
    with subprocess.Popen(command, stderr=subprocess.PIPE, bufsize=0) as child:
        assert child.stderr is not None
        while part := child.stderr.read(4096):
            # Incrementally: a read may end inside a character.
            text = decoder.decode(part)
            sys.stderr.write(text)
            sys.stderr.flush()
            kept = (kept + text)[-_KEPT:]
    return child.returncode, kept


def _machine(rig: Rig, name: str) -> dict[str, Any]:
    """Return what names the machine: the provider's own instance where the rig is one, else its GPUs."""
    if rig.name in instance_names():
        if name != "aws":
            raise UserError(f"--on {rig.name}: an instance of AWS, and --to is {name}", "--to aws, or --on as in 8xH100")
        return {"instance_type": rig.name}
    assert rig.gpu is not None
    known = _GPUS.get(rig.gpu.name)
    if known is None:
        raise UserError(f"--on {rig.name}: SkyPilot has no GPU {rig.gpu.name}", f"expected one of {', '.join(_GPUS)}")
    return {"accelerators": f"{known}:{rig.gpus_per_node}"}
