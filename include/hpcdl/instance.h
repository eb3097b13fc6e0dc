#pragma once
#include "hpcdl/graph/instance.h"
#include "hpcdl/graph/lanes.h"
#include "hpcdl/graph/plan.h"
#include "hpcdl/graph/program_cache.h"
