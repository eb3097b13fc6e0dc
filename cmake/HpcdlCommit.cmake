# Writes OUT, a C++ file with the commit of SOURCE: cmake -D SOURCE=... -D OUT=... -P HpcdlCommit.cmake
# Run in every build; the file is changed only if the commit has changed, and then only this file is compiled.
set(commit unknown)
find_program(git git)
if(git)
  execute_process(COMMAND ${git} -C ${SOURCE} rev-parse --show-toplevel OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  file(REAL_PATH "${SOURCE}" source)
  if(top STREQUAL source)  # and not an outer repository that contains the sources
    execute_process(COMMAND ${git} -C ${SOURCE} rev-parse --short=12 HEAD OUTPUT_VARIABLE found RESULT_VARIABLE failed
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(NOT failed)
      set(commit ${found})
    endif()
  endif()
endif()
set(text "// Made by cmake/HpcdlCommit.cmake.\n#include \"cli/version.h\"\n\nnamespace hpcdl::cli {\nconst char* const kCommit = \"${commit}\";\n}  // namespace hpcdl::cli\n")
set(old "")
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT text STREQUAL old)
  file(WRITE ${OUT} "${text}")
endif()
