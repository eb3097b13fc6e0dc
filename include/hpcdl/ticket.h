#pragma once
#include "hpcdl/core/ticket.h"
