#define ALLFOLD_ISA baseline
#include "kernels_impl.hpp"
