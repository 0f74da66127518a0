"""How many mathematical answers a second one worker judges, where every one of them must be compared.

python benchmarks/verify_math.py
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import time
from pathlib import Path

from windtunnel.verify.kinds import Verifiers

REPORT = Path(__file__).parent / "results" / "verify-math-cpu.json"
RIGHT, WRONG = ("so it is \\boxed{\\frac{6}{8}}", "thus \\boxed{0.75}"), ("the answer: \\boxed{x^2+1}",)
ROUNDS = 50


def main() -> None:
    """Judge right and wrong answers in turn, one worker."""
    with Verifiers(1) as verifiers:
        verifier = verifiers.make("math", {"answer": "3/4"})
        texts = [*RIGHT, *WRONG]
        accepted = [verifier.verify(text).accepted for text in texts]
        assert accepted == [True] * len(RIGHT) + [False] * len(WRONG), accepted
        load, seconds = os.getloadavg()[0], []
        for _ in range(ROUNDS):
            started = time.perf_counter()
            for text in texts:
                verifier.verify(text)
            seconds.append(time.perf_counter() - started)
    report = {
        "what": "windtunnel verify: mathematical answers that must be compared, one worker",
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "load_before": round(load, 1),
        "answers": ROUNDS * len(texts),
        # Other work on the machine only ever adds: the fastest quarter tells more of judging than all do.
        "per_second": round(len(texts) / statistics.quantiles(seconds, n=4)[0], 1),
        "per_second_over_all": round(ROUNDS * len(texts) / sum(seconds), 1),
    }
    REPORT.write_text(json.dumps(report, indent=1) + "\n")
    print(report)


if __name__ == "__main__":
    main()
