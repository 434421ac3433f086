// Processors with the float16 arithmetic of ARMv8.2. All other types have the kernels of baseline.cpp.
#define ALLFOLD_ISA fp16
#define ALLFOLD_FLOAT16_ALONE
#include "kernels/impl.hpp"
