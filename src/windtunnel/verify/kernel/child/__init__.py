"""What runs in a sandbox: with a candidate's code, or with the right answers that no candidate sees. Imports torch and triton."""
