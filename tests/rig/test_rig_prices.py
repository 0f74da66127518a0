"""Prices brought up to date: read in two forms, kept apart, refused whole when one makes no sense."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from windtunnel.cli.start import main
from windtunnel.recipe import UserError
from windtunnel.rig import age_days, parse_rig, prices_file, spot_interruptions, update_prices

OWN = "{date: 2026-11-20, source: a contract, gpus: {H100 SXM: {on_demand: [2, 3], spot: 1, interruptions: 0.05}}}"
TABLE = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice
cpu,,,4.0,16.0,0.2,us-east-1,,
gpu_8x_a100,A100,8.0,124.0,1800.0,10.32,us-east-1,"{'Gpus': [{'Name': 'A100'}]}",
gpu_8x_a100,A100,8.0,124.0,1800.0,16.0,us-west-1,"{'Gpus': [{'Name': 'A100'}]}",
8x_A100-80GB,A100-80GB,8.0,32.0,640.0,13.52,us-east-1,A100_80GB,7.12
p5.48xlarge,H100,8.0,192.0,2048.0,55.04,us-east-1,"{'Gpus': []}",20.0
8x_V100,NoSuchGPU,8.0,32.0,640.0,13.52,us-east-1,x,
"""


@pytest.fixture(autouse=True)
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_PRICES", str(tmp_path / "kept" / "prices.yaml"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("WINDTUNNEL_RIGS", raising=False)


def given(tmp_path: Path, text: str) -> str:
    (tmp_path / "given").write_text(text)
    return str(tmp_path / "given")


def test_new_prices_are_in_plans_and_the_users_own_go_before_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = update_prices(given(tmp_path, OWN))
    assert (done.gpus, done.unknown, done.path) == (("H100",), (), prices_file())
    rig = parse_rig("8xH100")
    assert rig.dollars_per_hour == 20.0
    assert "a contract, 2026-11-20" in rig.price_note
    assert spot_interruptions("2x(8xH100)") == (0.1, "a contract, 2026-11-20")
    assert spot_interruptions("1xH200") is None
    (tmp_path / "rigs.yaml").write_text("gpus: {H100: {price: {on_demand: [1, 1]}}}")
    monkeypatch.setenv("WINDTUNNEL_RIGS", str(tmp_path / "rigs.yaml"))
    assert parse_rig("8xH100").dollars_per_hour == 8.0


def test_another_currency_needs_its_rate(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no rate"):
        update_prices(given(tmp_path, "{date: 2026-11, currency: EUR, gpus: {H100: {on_demand: 2}}}"))
    update_prices(given(tmp_path, "{date: 2026-11, currency: EUR, dollars: 1.5, gpus: {H100: {on_demand: 2}}}"))
    assert parse_rig("1xH100").dollars_per_hour == 3.0


def test_a_table_of_skypilot_is_a_range_over_its_machines(tmp_path: Path) -> None:
    done = update_prices(given(tmp_path, TABLE), today=date(2026, 11, 23))
    assert (set(done.gpus), done.instances, done.unknown) == ({"A100-40", "A100-80", "H100"}, ("p5.48xlarge",), ("NoSuchGPU",))
    assert parse_rig("1xA100-40").dollars_per_hour == pytest.approx((1.29 + 2.0) / 2)
    assert parse_rig("p5.48xlarge").dollars_per_hour == 55.04
    update_prices(given(tmp_path, TABLE), region="us-west-1")
    assert parse_rig("1xA100-40").dollars_per_hour == 2.0
    assert parse_rig("1xA100-80").dollars_per_hour == 1.69  # of the first update
    with pytest.raises(UserError, match="us-east-1, us-west-1"):
        update_prices(given(tmp_path, TABLE), region="mars")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "{gpus: {H100: {on_demand: 2}}}", "{date: soon, gpus: {H100: {on_demand: 2}}}",
     "{date: 2026-11, gpus: {H100: 2}}", "{date: 2026-11, gpus: {H100: {on_demand: -2}}}",
     "{date: 2026-11, gpus: {H100: {on_demand: [3, 2]}}}", "{date: 2026-11, gpus: {H100: {on_demand: .nan}}}",
     "{date: 2026-11, gpus: {H100: {on_demand: 5000}}}", "{date: 2026-11, gpus: {H100: {onDemand: 2}}}",
     "{date: 2026-11, gpus: {NoGPU: {on_demand: 2}}}", "{date: 2026-11, prices: {}}", "\0\1"],
)  # fmt: skip
def test_what_makes_no_sense_changes_nothing(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match="given"):
        update_prices(given(tmp_path, text))
    assert not prices_file().exists()


def test_an_address_is_read_or_named(tmp_path: Path) -> None:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/prices" else 404)
            self.end_headers()
            self.wfile.write(OWN.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert update_prices(f"{url}/prices").gpus == ("H100",)
        with pytest.raises(UserError, match="Not Found"):
            update_prices(f"{url}/none")
        server.shutdown()
    with pytest.raises(UserError, match="cannot be reached from here"):
        update_prices(f"{url}/prices")


def lambda_type(description: str, count: int, cents: int) -> dict[str, object]:
    """As docs.lambda.ai/api/cloud shows it, without the keys that say nothing of prices."""
    kind = {
        "gpu_description": description,
        "price_cents_per_hour": cents,
        "specs": {"vcpus": 26, "memory_gib": 225, "gpus": count},
    }
    return {"instance_type": kind, "regions_with_capacity_available": [{"name": "us-west-1", "description": "California, USA"}]}


LAMBDA = {
    "data": {
        "gpu_8x_h100_sxm5": lambda_type("H100 (80 GB SXM5)", 8, 2392),
        "gpu_1x_h100_pcie": lambda_type("H100 (80 GB PCIe)", 1, 249),
        "gpu_8x_a100": lambda_type("A100 (40 GB SXM4)", 8, 1032),
        "gpu_8x_a100_80gb_sxm4": lambda_type("A100 (80 GB SXM4)", 8, 1432),
        "gpu_1x_a6000": lambda_type("A6000 (48 GB)", 1, 80),
        "cpu_4x_general": lambda_type("N/A", 0, 20),
    }
}
RUNPOD = {
    "data": {
        "gpuTypes": [
            {"id": "NVIDIA GeForce RTX 4090", "displayName": "RTX 4090", "memoryInGb": 24, "securePrice": 0.69,
             "communityPrice": 0.34, "secureSpotPrice": 0.35, "communitySpotPrice": 0.2},
            {"id": "NVIDIA H100 80GB HBM3", "displayName": "H100 SXM", "memoryInGb": 80, "securePrice": 2.99,
             "communityPrice": 2.69, "secureSpotPrice": 1.75, "communitySpotPrice": None},
            {"id": "NVIDIA A100-SXM4-80GB", "displayName": "A100 SXM", "memoryInGb": 80, "securePrice": 1.89,
             "communityPrice": 0, "secureSpotPrice": 0, "communitySpotPrice": 0},
            {"id": "AMD Instinct MI300X OAM", "displayName": "MI300X", "memoryInGb": 192, "securePrice": 2.49,
             "communityPrice": None, "secureSpotPrice": None, "communitySpotPrice": None},
        ]
    }
}  # fmt: skip


@contextlib.contextmanager
def provider(answer: object) -> Iterator[str]:
    """A server that has a list for those who show the key 'mine'; gives its address."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(200 if self.headers["Authorization"] == "Bearer mine" else 401)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_what_lambda_and_runpod_publish_is_read_with_the_users_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LAMBDA_API_KEY", "RUNPOD_API_KEY", "RUNPOD_AI_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"LAMBDA_API_KEY, ~/\.lambda_cloud/lambda_keys"):
        update_prices("lambda")
    (tmp_path / ".lambda_cloud").mkdir()
    (tmp_path / ".lambda_cloud" / "lambda_keys").write_text("api_key = mine\n")
    with provider(LAMBDA) as address:
        done = update_prices(f"lambda@{address}")
    assert (set(done.gpus), done.unknown) == ({"H100", "H100-PCIe", "A100-40", "A100-80"}, ("A6000",))
    assert [parse_rig(name).dollars_per_hour for name in ("8xH100", "8xA100-40", "8xA100-80")] == [23.92, 10.32, 14.32]
    monkeypatch.setenv("RUNPOD_API_KEY", "mine")
    with provider(RUNPOD) as address:
        done = update_prices(f"runpod@{address}")
        assert (set(done.gpus), done.unknown) == ({"RTX4090", "H100", "A100-80"}, ("MI300X",))
        assert parse_rig("1xH100").dollars_per_hour == pytest.approx((2.99 + 2.69) / 2)
        update_prices(f"runpod@{address}", region="community")
        assert parse_rig("1xH100").dollars_per_hour == 2.69
        monkeypatch.setenv("RUNPOD_API_KEY", "another-secret")
        with pytest.raises(UserError, match="runpod refuses the key") as refused:
            update_prices(f"runpod@{address}")
    assert "another-secret" not in str(refused.value)
    with pytest.raises(UserError, match="cannot be reached from here"):
        update_prices(f"runpod@{address}")
    assert parse_rig("1xH100").dollars_per_hour == 2.69


@pytest.mark.parametrize(
    "answer", [{"errors": [{"message": "no such field"}]}, {"error": {"code": "internal"}}, {"data": {"gpuTypes": [{}]}}]
)
def test_an_answer_that_is_no_list_is_named(answer: object, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no list of prices"):
        update_prices(given(tmp_path, json.dumps(answer)))


def test_a_price_is_as_old_as_it_says() -> None:
    today = date(2026, 11, 23)
    days = [age_days(told, today=today) for told in ("2026-11-20", "2026-10", "2025", "2026", "undated", "2026-13")]
    assert days == [3, 22, 326, 0, None, None]


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["prices", "--update", given(tmp_path, OWN), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (ended.value.code or 0, told["updated"]) == (0, ["H100"])
    with pytest.raises(SystemExit) as ended:
        main(["rig", "prices"])  # as it is also called
    assert "a contract" in capsys.readouterr().out


def test_the_table_is_whole_at_80_columns_and_its_sources_stand_below(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["prices"])
    shown = capsys.readouterr().out
    _, table, notes, *_ = shown.split("\n\n")
    rows = table.splitlines()[2:]
    assert len(rows) == len({row.split()[0] for row in rows}) > 8  # a line a price
    assert all(row.split()[-1].isdecimal() for row in rows)
    assert max(map(len, shown.splitlines())) <= 80
    assert "alloclabs.com" in notes


def test_an_update_of_nothing_is_told_what_it_may_be(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["prices", "--update"])
    assert ended.value.code == 2
    assert "requires an argument. Prices to take over: lambda, runpod, aws, gcp or azure" in capsys.readouterr().err
