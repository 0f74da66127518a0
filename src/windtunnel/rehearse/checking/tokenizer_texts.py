"""Texts that every tokenizer should give back as they were."""

ODD_TEXTS = (
    "",
    " \t\n\r\n  \x0b\x0c",
    "\x00\x01\x1b[0m\x7f",
    "naïve café 東京 Привет مرحبا हिन्दी",
    "🤷🏽‍♀️ e\u0301 \u202e\ufeff ﷽",
    "a" * 5000,
    "<|bos|><|endoftext|></s>[PAD]",
)
"""What users type and data holds: a byte-level tokenizer gives each back as it was."""
