#pragma once
#include "hpcdl/core/rng.h"
