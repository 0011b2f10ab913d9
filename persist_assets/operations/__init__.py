"""Operations of operators: one module for each verb."""
