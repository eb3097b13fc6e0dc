#pragma once
#include "hpcdl/core/buffer.h"
