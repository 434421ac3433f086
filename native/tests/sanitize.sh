#!/usr/bin/env bash
# sanitize.sh thread | address,undefined
# Builds the engine with that sanitizer of g++, then runs the native tests and the tests that have ranks as threads of one
# process. Exit status 0 only if all passed and nothing was reported. `make sanitize` runs both.
set -euo pipefail
cd "$(dirname "$0")/../.."
kind=${1:?thread or address,undefined}
python=$PWD/.venv/bin/python
folder=$PWD/build/sanitize-${kind%%,*}
export PATH=$PWD/.venv/bin:$PATH CXX=g++  # the libraries below are those of g++

cmake -S . -B "$folder" -G Ninja -DSKBUILD=ON -DALLFOLD_TESTS=ON -DALLFOLD_SANITIZE="$kind" -DPython_EXECUTABLE="$python"
cmake --build "$folder"

# A package of links: the Python sources where they lie, and this extension.
rm -rf "$folder/site"
mkdir -p "$folder/site/allfold"
ln -s "$PWD"/src/allfold/* "$folder/site/allfold/"
rm "$folder/site/allfold/_native"
mkdir "$folder/site/allfold/_native"
ln -s "$PWD"/src/allfold/_native/*.py "$folder"/_engine*.so "$folder/site/allfold/_native/"
ln -s "$PWD/src/allfold_autoload" "$folder/site/"  # the entry points of pytest and torch name it
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')

library() { g++ -print-file-name="$1"; }
case $kind in
thread)
    # exitcode: a report is a failure, even where every test passed.
    export TSAN_OPTIONS="exitcode=66 history_size=4 suppressions=$PWD/native/tests/tsan.supp"
    preload=$(library libtsan.so)
    native='engine_test|communicator_test|channel_test|islands_test|cuda_test|wire_test'  # the kernels' test has one thread
    ;;
address*)
    # No leak detection: an interpreter that exits leaves most of its memory to the system, and all of that would be named.
    export ASAN_OPTIONS="detect_leaks=0" UBSAN_OPTIONS="halt_on_error=1 print_stacktrace=1"
    # Python's own allocator would hide where an array ends.
    export PYTHONMALLOC=malloc
    # libstdc++ too: Python comes without it, and the sanitizer looks for it before the extension brings it.
    preload="$(library libasan.so) $(library libstdc++.so)"
    native=.
    ;;
esac

# At fixed addresses (setarch -R): ThreadSanitizer's shadow memory does not fit around more than 28 random bits of them.
setarch "$(uname -m)" -R ctest --test-dir "$folder" --tests-regex "$native" --output-on-failure
# A fraction of the grid: what counts here are the interleavings, and everything takes ten times as long. Small arenas, since
# their shadow counts too, and has no room for more on ARM. -S: without it the installed extension would come first. -k also
# names a file's tests.
export ALLFOLD_TEST_GRID=reduced ALLFOLD_ARENA_BYTES=$((1 << 28)) PYTHONPATH=$folder/site:$packages
setarch "$(uname -m)" -R env LD_PRELOAD="$preload" "$python" -S -m pytest -p no:cacheprovider --capture=sys -k threads \
    tests/engines/test_engine_threads*.py tests/communicator/test_point_to_point.py tests/programs/test_random_schedules.py \
    tests/mpi4py/test_compiled.py
