#!/bin/sh
# Installs what some tests need beside Python: an sshd and rsync, for machines that are reached by ssh alone.
# At best: only as root where apt works. Without them those tests are skipped, and say what is missing.
set -u
for tool in sshd rsync; do
  PATH="$PATH:/usr/sbin:/usr/local/sbin" command -v "$tool" >/dev/null || missing=yes
done
[ -n "${missing:-}" ] || exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "not root with apt-get here: tests that need an sshd and rsync are skipped"
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
install() { timeout 120 apt-get install -y -q --no-install-recommends openssh-server openssh-client rsync; }
{ install || { timeout 120 apt-get update -q && install; }; } >/dev/null 2>&1 </dev/null ||
  echo "openssh-server and rsync cannot be installed here: tests that need them are skipped"
exit 0
