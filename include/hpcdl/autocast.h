#pragma once
#include "hpcdl/graph/autocast.h"
