# Writes a C file that defines every function LIBRARY exports. None of them ever runs: the loader prefers the library's.
execute_process(COMMAND ${NM} --dynamic --defined-only --format=posix ${LIBRARY}
  OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[Aa]cl[A-Za-z0-9_]+ T" symbols "${symbols}")
set(text "")
foreach(symbol IN LISTS symbols)
  string(REPLACE " T" "" symbol ${symbol})
  string(APPEND text "void ${symbol}(void) { __builtin_trap(); }\n")
endforeach()
if(text STREQUAL "")
  message(FATAL_ERROR "${LIBRARY} exports nothing")
endif()
file(WRITE ${OUTPUT} "${text}")
