#!/bin/sh
# Installs what some tests need beside Python: an sshd and rsync, for machines that are reached by ssh alone; Slurm, of which
# tests start one of two nodes; a headless Chromium, for pages; and SkyPilot, of whose schema task files are, in an environment
# of its own at build/sky, as it is large and wants other versions than ours. At best: only as root where apt works, and one
# without the others where only one is to be had. Without them those tests are skipped, and say what is missing.
set -u
PATH="$PATH:/usr/sbin:/usr/local/sbin"
export DEBIAN_FRONTEND=noninteractive

one_of() {
  for tool; do command -v "$tool" >/dev/null && return; done
  return 1
}
can_install() { [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; }
install() { timeout 240 apt-get install -y -q --no-install-recommends "$@" >/dev/null 2>&1 </dev/null; }
# What a machine knows of packages may be old or nothing: it is asked for once, in what is installed first.
update() { [ -n "${updated:-}" ] || { updated=yes; timeout 120 apt-get update -q >/dev/null 2>&1 </dev/null; }; }
skipped() { echo "$1 cannot be installed here: tests that need it are skipped"; }

if ! { one_of sshd && one_of rsync; }; then
  set -- openssh-server openssh-client rsync
  can_install && { install "$@" || { update && install "$@"; }; } || skipped "an sshd with rsync"
fi
if ! { one_of slurmctld && one_of slurmd && one_of munged; }; then
  set -- slurm-wlm munge
  can_install && { install "$@" || { update && install "$@"; }; } || skipped "Slurm"
fi
if ! one_of chromium chromium-headless-shell chromium-browser google-chrome; then
  # The shell alone has no windows, and is a third smaller. Not every distribution has it; Ubuntu's are snaps, which are no files.
  set -- chromium-headless-shell
  can_install && { install "$@" || { update && install "$@"; } || install chromium; } || skipped "a headless Chromium"
fi
sky=$(dirname "$0")/../build/sky
if ! [ -x "$sky/bin/sky" ]; then
  for python in python3.11 python3.12 python3; do
    "$python" -m venv "$sky" >/dev/null 2>&1 && break
  done
  timeout 400 "$sky/bin/python" -m pip install -q skypilot==0.14.1 >/dev/null 2>&1 </dev/null || skipped "SkyPilot"
fi
exit 0
