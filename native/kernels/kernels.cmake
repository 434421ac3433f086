# The fold kernels: one library, each instruction set of it with its own flags.
# No -ffast-math, no contraction into fused multiply-adds: the bits of a result are part of the interface.
set(ALLFOLD_KERNEL_SOURCES ${CMAKE_CURRENT_LIST_DIR}/kernels.cpp ${CMAKE_CURRENT_LIST_DIR}/baseline.cpp)
# -O3 takes longer to compile them and makes none faster: they are written with vectors, and unrolled. -O1 compiles
# AVX-512's in 0.85 to 0.9 of the time, but many sums of arrays in the caches then run at 0.7 to 0.9 of the speed.
set(ALLFOLD_KERNEL_FLAGS -O2 -falign-loops=64 -ffp-contract=off)
if(ALLFOLD_SANITIZE MATCHES "address")
  # Thousands of template instances: with every check inlined they take many minutes to compile. These options keep
  # the checks of memory accesses and of undefined arithmetic, as calls.
  set(ALLFOLD_KERNEL_FLAGS
      -O1 -g1 -ffp-contract=off -fno-sanitize=null,alignment,pointer-overflow
      --param=asan-stack=0 --param=asan-instrumentation-with-call-threshold=0)
endif()
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/baseline.cpp PROPERTIES COMPILE_OPTIONS
                            "${ALLFOLD_KERNEL_FLAGS}")

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  list(APPEND ALLFOLD_KERNEL_SOURCES ${CMAKE_CURRENT_LIST_DIR}/avx2.cpp
       ${CMAKE_CURRENT_LIST_DIR}/avx512.cpp)
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/avx2.cpp PROPERTIES COMPILE_OPTIONS
                              "${ALLFOLD_KERNEL_FLAGS};-mavx2;-mf16c")
  set_source_files_properties(
    ${CMAKE_CURRENT_LIST_DIR}/avx512.cpp
    PROPERTIES COMPILE_OPTIONS
               "${ALLFOLD_KERNEL_FLAGS};-mavx2;-mf16c;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq")
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(ALLFOLD_FP16_FLAGS "-march=armv8.2-a+fp16" CACHE STRING "flags for half precision (zig words them differently)")
  list(APPEND ALLFOLD_KERNEL_SOURCES ${CMAKE_CURRENT_LIST_DIR}/fp16.cpp)
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/fp16.cpp PROPERTIES COMPILE_OPTIONS
                              "${ALLFOLD_KERNEL_FLAGS};${ALLFOLD_FP16_FLAGS}")
endif()
