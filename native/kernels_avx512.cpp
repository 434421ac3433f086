#define ALLFOLD_ISA avx512
#include "kernels_impl.hpp"
