# Writes OUT, a C++ file that holds the commit SOURCE stands at: cmake -D SOURCE=... -D OUT=... -P HpcdlCommit.cmake
# Run in every build; the file is touched only where the commit has changed, and is the only one to be compiled then.
set(commit unknown)
find_program(git git)
if(git)
  execute_process(COMMAND ${git} -C ${SOURCE} rev-parse --show-toplevel OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  file(REAL_PATH "${SOURCE}" source)
  if(top STREQUAL source)  # and not a repository that sources without one lie in
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
