#!/bin/sh
# The verifier's tests with the oldest Triton that pyproject.toml allows, whose interpreter is another: GPU machines often have it.
# What else it needs it takes from .venv.
set -eu
cd "$(dirname "$0")/.."
oldest=$(sed -n 's/^verify = .*"triton>=\([0-9.]*\);.*/\1/p' pyproject.toml)
folder=build/triton-$oldest
if [ ! -e "$folder/ready" ]; then
  rm -rf "$folder"
  .venv/bin/python -m venv --without-pip "$folder"
  own=$("$folder/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
  .venv/bin/python -m pip install --quiet --no-deps --target "$own" "triton==$oldest.*"
  .venv/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" >"$own/others.pth"
  echo "$PWD/src" >>"$own/others.pth"
  touch "$folder/ready"
fi
"$folder/bin/python" -c "import triton; assert triton.__version__.startswith('$oldest.'); print('triton', triton.__version__)"
exec "$folder/bin/python" -m pytest tests/verify -m "not slow and not gpu" -n logical --maxprocesses 8 --dist loadfile "$@"
