#!/usr/bin/env bash
# Installs what is heavy into an environment of its own, and runs the tests that skip without it.
#
#     benchmarks/everything.sh [FOLDER OF THE ENVIRONMENT]
#
# TORCH names another build of torch for pip (Olive needs one; "torch==2.13.0+cpu" is without CUDA).
# Chromium is Debian's, installed where that is possible, or what ONNXREMAT_CHROMIUM names; the
# packages of node are installed by npm, or lie in the folder that ONNXREMAT_NODE names.
# What is missing and cannot be installed is named at the end, and is a failure, too.
# To add to it: a line in PACKAGES, and a row in TESTS.
set -uo pipefail
cd "$(dirname "$0")/.."
environment=${1:-.venv-everything}

PACKAGES=(
  pipx
  pre-commit
  uv
)
EXTRAS=dev,docs,dask,olive

# What it is, and the tests of it.
TESTS=(
  "budget reports|tests/cli/test_budget_reports.py"
  "page of pipelines|tests/pipelines/test_page.py"
  "pre-commit hook|tests/pipelines/test_pre_commit.py"
  "GitHub Action|tests/pipelines/test_action.py"
  "Microsoft Olive|tests/integrations/test_olive.py"
  "Dask, a worker killed|tests/fleet tests/commands/test_sweep_on_dask.py"
  "pages in a browser|tests/cli/test_pages.py tests/cli/test_pages_in_browser.py"
  "node and WebAssembly|tests/benchmarks/test_process_clients.py"
  "pages as a site|tests/test_site.py tests/test_figures.py"
  "every command shown|tests/test_shown_commands.py"
  "uv and pipx|tests/test_wheel.py"
)

python3 -m venv "$environment" || exit 1
. "$environment/bin/activate"
export ONNXREMAT_EVERYTHING=1 ONNXREMAT_DOCUMENTS=1 ONNXREMAT_INSTALL=1 OLIVE_DISABLE_TELEMETRY=1
began=$SECONDS
pip install -q "${TORCH:-torch}" && pip install -q -e ".[$EXTRAS]" "${PACKAGES[@]}" || exit 1

# The schema of SARIF by its authors, which a package for Jest has.
schemas=$(mktemp -d)
node=$(mktemp -d)
trap 'rm -rf "$schemas" "$node"' EXIT
if command -v npm > /dev/null && (cd "$schemas" && npm pack --silent @microsoft/jest-sarif \
    > /dev/null && tar xzf ./*.tgz); then
  export SARIF_SCHEMA=$schemas/package/lib/schemas/sarif-2.1.0-rtm.5.json
fi

if [ -z "${ONNXREMAT_NODE:-}" ] && command -v npm > /dev/null; then
  # The scripts of packages fetch builds from elsewhere.
  (cd "$node" && npm install --silent --ignore-scripts \
    onnxruntime-node onnxruntime-web playwright-core > /dev/null) && export ONNXREMAT_NODE=$node
fi
if [ -z "${ONNXREMAT_CHROMIUM:-}" ]; then
  command -v chromium > /dev/null || apt-get install -qq -y chromium > /dev/null
  ONNXREMAT_CHROMIUM=$(command -v chromium) && export ONNXREMAT_CHROMIUM
fi

echo "# benchmarks/everything.sh at $(git rev-parse --short HEAD 2> /dev/null || echo '?')," \
  "$(uname -sm), $(nproc) processors, Python $(python -c 'import platform as p; print(p.python_version())')"
pip list 2> /dev/null | grep -iE '^(distributed|mkdocs-material|olive-ai|onnx|onnxruntime(-gpu)?|pre_commit|torch) ' \
  | tr -s ' ' | paste -sd, | sed 's/,/, /g'
echo "installed in $((SECONDS - began)) s"
echo
echo "| what | result | seconds |"
echo "|---|---|---|"
failed=0
for row in "${TESTS[@]}"; do
  IFS='|' read -r what paths <<< "$row"
  began=$SECONDS
  # The files of a row are words.
  log=$(python -m pytest -n 0 -rs $paths 2>&1)
  code=$?
  result=$(tail -n 1 <<< "$log" | sed 's/^=* *//; s/ *=*$//; s/ in [0-9.]*s.*//')
  echo "| $what | $result | $((SECONDS - began)) |"
  if [ $code -ne 0 ] || grep -q '^SKIPPED' <<< "$log"; then
    failed=1
    printf '%s\n' "$log" | grep -E '^(SKIPPED|FAILED|ERROR)' | sed 's/^/    /' >&2
    [ $code -eq 0 ] || printf '%s\n' "$log" | tail -n 60 >&2
  fi
done
exit $failed
