#pragma once
#include "hpcdl/core/device.h"
