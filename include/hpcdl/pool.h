#pragma once
#include "hpcdl/core/pool.h"
