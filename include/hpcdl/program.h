#pragma once
#include "hpcdl/program/lane.h"
#include "hpcdl/program/program.h"
