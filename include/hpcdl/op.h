#pragma once
#include "hpcdl/program/cost.h"
#include "hpcdl/program/op.h"
