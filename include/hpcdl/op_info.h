#pragma once
#include "hpcdl/program/bound.h"
#include "hpcdl/program/op_info.h"
#include "hpcdl/program/op_name.h"
#include "hpcdl/program/valid.h"
