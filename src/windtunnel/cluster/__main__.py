"""python -m windtunnel.cluster FOLDER: one attempt of a job, as its batch script starts it."""

import sys

from .batch import main

sys.exit(main())
