#!/bin/sh
# Installs the workbook from this folder, without a network, and opens it: sh install.sh [FOLDER]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=$(cat "$here/python") # whose wheels these are, such as python3.11
folder=${1:-$HOME/collectives-workbook}
if ! command -v "$python" >/dev/null; then
  echo "The wheels in this folder are for $python, which is not installed here. Install it and run this again." >&2
  exit 1
fi
mkdir -p "$folder"
tar -xzf "$here/workbook.tar.gz" -C "$folder"
cd "$folder"
ln -sfn "$here/wheels" .wheels # pip would take a space in the path for two paths
PIP_NO_INDEX=1 PIP_FIND_LINKS=.wheels make lab PYTHON="$python"
