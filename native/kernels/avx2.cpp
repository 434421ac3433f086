#define ALLFOLD_ISA avx2
#include "kernels/impl.hpp"
