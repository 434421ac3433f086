#!/bin/sh
# Build the engine in this tree with CMake and a C++ compiler alone, for a machine where nothing can be installed.
#   tests/gpu/build.sh pack    here, after `make setup`: gather what that machine lacks, in build/carry
#   tests/gpu/build.sh         there: build into src/allfold/_native; then PYTHONPATH=src:build/carry python3 tests/gpu/...
set -e
cd "$(dirname "$0")/../.."
if [ "$1" = pack ]; then
    packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    rm -rf build/carry
    mkdir -p build/carry
    for name in nanobind cloudpickle rich markdown_it mdurl pygments; do cp -r "$packages/$name" build/carry; done
    exit
fi
python=${PYTHON:-python3}
cmake -S . -B build/gpu -DALLFOLD_NANOBIND="$PWD/build/carry/nanobind" \
    -DALLFOLD_PYTHON_INCLUDE="$($python -c 'import sysconfig; print(sysconfig.get_path("include"))')" \
    -DALLFOLD_SUFFIX="$($python -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')"
cmake --build build/gpu --target _engine -j "$(nproc)"
cp build/gpu/_engine*.so src/allfold/_native
