#pragma once
#include "hpcdl/core/dtype.h"
