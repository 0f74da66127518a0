"""The knowledge cut-off in a model's files, in the words of published ones."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from windtunnel.data.checks_theses import knowledge_cutoff


@pytest.mark.parametrize(
    ("name", "text", "day"),
    [
        # Llama 3.1's chat template, gpt-oss's, and the cards of Llama 3.3 and Phi-4.
        ("chat_template.jinja", '{{- "Cutting Knowledge Date: December 2023\\n" }}', "2023-12-31"),
        ("tokenizer_config.json", '{"chat_template": "{{ \'Knowledge cutoff: 2024-06\\n\' }}"}', "2024-06-30"),
        ("README.md", "**Data Freshness:** The pretraining data has a cutoff of December 2023.", "2023-12-31"),
        ("README.md", "| **Cutoff date** | June 2024 and earlier for publicly available data |", "2024-06-30"),
        ("README.md", "knowledge cut-off is 2024-02-29.\nAn earlier one had its cutoff in March 2023.", "2024-02-29"),
        ("README.md", "Knowledge cutoff: Dec 2023", "2023-12-31"),
        ("README.md", "a cut-off date of Sept. 2024", "2024-09-30"),
        ("README.md", "Knowledge cutoff: Aug. 2024", "2024-08-31"),
        ("README.md", "Knowledge cutoff: August 5, 2024", "2024-08-05"),
        ("README.md", "Its cutoff is the 5th August 2024.", "2024-08-05"),
        ("README.md", "Knowledge cutoff: 2024/06", "2024-06-30"),
        ("README.md", "Knowledge cutoff: February 30, 2024", None),
        ("README.md", "cutoff decided 2024", None),
        ("README.md", "The cutoff frequency is 200 Hz; released in May 2025.", None),
        ("README.md", "Knowledge cutoff: 2024-13", None),
    ],
)
def test_a_cutoff_is_read_as_it_is_published(tmp_path: Path, name: str, text: str, day: str | None) -> None:
    (tmp_path / name).write_text(text)
    found = knowledge_cutoff(tmp_path)
    assert found == (None if day is None else (datetime.date.fromisoformat(day), name))


def test_a_folder_without_such_files_has_none(tmp_path: Path) -> None:
    assert knowledge_cutoff(tmp_path) is None
