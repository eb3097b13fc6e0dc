#pragma once
#include "hpcdl/core/stream.h"
