#pragma once
#include "hpcdl/graph/bindings.h"
#include "hpcdl/graph/graph.h"
#include "hpcdl/graph/var.h"
