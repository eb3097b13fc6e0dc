#define HPCDL_INT4_GROUP 64
#include "hpcdl/ops/int4_linear/int4_launch.cuh"
