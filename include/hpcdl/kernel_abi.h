#pragma once
#include "hpcdl/ops/kernel_abi.h"
