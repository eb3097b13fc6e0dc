#pragma once
#include "hpcdl/comm/group.h"
#include "hpcdl/comm/reduce.h"
