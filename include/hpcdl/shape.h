#pragma once
#include "hpcdl/core/shape.h"
