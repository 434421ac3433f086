#define ALLFOLD_ISA avx512
#include "kernels/impl.hpp"
