#define ALLFOLD_ISA baseline
#include "kernels/impl.hpp"
