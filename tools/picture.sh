#!/bin/sh
# Draws docs/rehearse.svg anew: a real rehearsal in a terminal of 100 columns (needs tmux; takes two minutes).
set -eu
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
session=picture-$$
trap 'tmux kill-session -t "$session" 2>/dev/null || true; rm -rf "$folder"' EXIT
tmux -f /dev/null new-session -d -s "$session" -x 100 -y 240 \
  "cd '$folder'; '$PWD/.venv/bin/windtunnel' rehearse charlm; touch done; sleep 600"
while [ ! -e "$folder/done" ]; do sleep 1; done
sleep 1
# The folder is this machine's and of no interest; as many blanks keep the columns.
blanks=$(printf '%*s' $((${#folder} - 1)) '')
tmux capture-pane -e -p -t "$session" | sed "s#$folder/runs#~/runs$blanks#" | .venv/bin/python tools/terminal_svg.py "make rehearse" "^ +check +evidence" >docs/rehearse.svg
