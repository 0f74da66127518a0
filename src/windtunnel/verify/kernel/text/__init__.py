"""What a candidate's text may contain, judged in the parent without running any of it."""
