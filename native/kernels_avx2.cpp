#define ALLFOLD_ISA avx2
#include "kernels_impl.hpp"
