#pragma once
#include "hpcdl/core/tensor.h"
